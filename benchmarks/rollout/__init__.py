"""Rollouts by simulation."""
