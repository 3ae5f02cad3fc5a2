"""What images cost a CPU."""
