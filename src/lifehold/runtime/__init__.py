"""The only room that reads a clock, starts a thread or a task, or asks who we are."""
