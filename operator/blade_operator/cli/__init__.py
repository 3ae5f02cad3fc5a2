"""The command line: ``run``, ``local up``, and the commands on objects of a local runtime, which follow kubectl."""
