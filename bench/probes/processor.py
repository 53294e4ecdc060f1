"""Have Inductor find out what the processor can do: ``python -m bench.probes.processor``."""

from torch._inductor.cpu_vec_isa import pick_vec_isa

if __name__ == "__main__":
    pick_vec_isa()
