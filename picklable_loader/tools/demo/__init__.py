"""The demo: a training run that is killed, resumed, and ends as if nothing had happened."""
