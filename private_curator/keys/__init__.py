"""Where the ledger's key is: a file, a token, or a service of the hospital's own."""
