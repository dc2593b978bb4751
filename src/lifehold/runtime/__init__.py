"""The only place that reads a clock, starts a thread or a task, or asks the operating system who we are."""
