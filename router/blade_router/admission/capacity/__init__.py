"""What engines can take: their slots, by whom they are held, and how many prompts at a time."""
