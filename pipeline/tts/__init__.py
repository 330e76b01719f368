"""Reply text into clauses, spoken words and audio."""
