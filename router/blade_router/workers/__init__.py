"""Worker processes: their supervisor and the memory they share."""
