"""The laws as a matrix: dataset x sampler x num_workers x start method x codec x step."""
