"""Solutions by factors of a lower precision, refined, and by GMRES where refinement stalls."""
