"""What a delivered model or generator follows from, and the certificate that says so."""
