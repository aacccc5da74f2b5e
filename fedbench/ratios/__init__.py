"""Density ratios between clients' test and training data: exact, or estimated from unlabelled samples (HDRM).

Source: FTW-ERM (Covariate shifts, TMLR 2023), Sec. 2, 3 and App. C to H. Nothing is imported here: `bound` and `exact`
need NumPy alone (k-means scikit-learn), `matching` torch.

Scale. The paper's ratio of client k is the sum over clients l of q_l(x) / p_k(x), with training density p and test
density q. Here (as in the authors' code) the default is this ratio divided by the number of clients K, called "mean":
its expectation under p_k is 1 for every client. The scale "sum" is the paper's.
"""
