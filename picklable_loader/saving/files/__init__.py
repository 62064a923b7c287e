"""Files: checkpoints, and a look into them that runs nothing."""
