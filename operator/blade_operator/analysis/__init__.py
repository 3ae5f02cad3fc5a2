"""Whether a new revision is worse than the one it is to replace. Pure functions of what routers have counted."""
