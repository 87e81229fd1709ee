"""California's deletion lists (DROP, the Delete Act): read them, match them, forget whom they name, and answer."""
