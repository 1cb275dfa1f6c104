"""The connection to one curator: transport, values, identity, receipts."""
