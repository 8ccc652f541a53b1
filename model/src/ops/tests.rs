//! Every fused operation against its composed reference, value and gradient.
