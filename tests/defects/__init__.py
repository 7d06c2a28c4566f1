"""The track record: one scenario per defect of PyTorch's etcd modules, run against theirs and against ours."""
