"""The papers' claims: cases, what they measure, and the page that tells."""
