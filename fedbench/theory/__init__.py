"""Papers' theory as functions, without torch: a room a paper (`ftw_erm`), and in `wasserstein` how far FLUX's
descriptors are from Wasserstein distances (Table 4)."""
