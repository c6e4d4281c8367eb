"""Set-based statements, by purpose. Static, with bound parameters; a comment names the index each leans on."""
