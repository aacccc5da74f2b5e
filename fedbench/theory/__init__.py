"""Papers' theory as functions and checks, without torch, a module or package a paper (`ftw_erm`, `feddrm`); in `arrays`
how far FLUX's descriptors are from Wasserstein distances (Table 4). `papers` lists what `fedbench theory` can check."""
