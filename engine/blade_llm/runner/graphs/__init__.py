"""Steps as CUDA graphs."""
