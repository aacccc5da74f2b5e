"""Papers' theory as functions and checks, without torch: a room a paper (`ftw_erm`, `feddrm`), and in `wasserstein` how
far FLUX's descriptors are from Wasserstein distances (Table 4). `papers` lists what `fedbench theory` can check."""
