//! Which build this is: for people, in `--version`, manifests and records of attempts. Nothing
//! compares it, and no digest or identity covers it.

/// Version, and the commit that it was built from where that is known: `0.1.0 93d9dea17ab4+dirty`.
pub const BUILD: &str = env!("AGENTGYM_BUILD");

/// What was compiled in beyond the ordinary.
pub const FEATURES: &str = if cfg!(feature = "cuda") {
    "features: cuda"
} else {
    "features: none"
};
