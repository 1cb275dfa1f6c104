"""What both parties share: the core, the sandbox, the accounting."""
