"""torch-npu without hardware: an emulation of CANN, and what workers on NPUs do."""
