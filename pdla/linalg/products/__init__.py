"""Products beyond matmul: triangles, batches, chains, vectors."""
