"""What shows that a lane keeps its bits: certificate, hostile kernels, live reconciliation."""
