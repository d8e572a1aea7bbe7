"""Operations under the roofline of a GPU, from shapes, HLO lines or Nsight Compute."""
