//! Identifies the build for people: in `--version`, manifests and attempt records. It is never
//! compared, and no digest or identity covers it.

/// Version, and the commit it was built from if known: `0.1.0 93d9dea17ab4+dirty`.
pub const BUILD: &str = env!("AGENTGYM_BUILD");

/// Optional features that were compiled in.
pub const FEATURES: &str = match (cfg!(feature = "cuda"), cfg!(feature = "hub")) {
    (true, true) => "features: cuda, hub",
    (true, false) => "features: cuda",
    (false, true) => "features: hub",
    (false, false) => "features: none",
};
