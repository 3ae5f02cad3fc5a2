"""What fails: containers, pods, writes of objects, each with its cause and what to change."""
