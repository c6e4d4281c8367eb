"""Set-based statements of booking. Each is static with bound parameters; a comment names the index it leans on."""
