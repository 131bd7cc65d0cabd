"""How much residents of one device slow each other down. Pure."""
