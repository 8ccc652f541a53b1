//! Identifies the build for people: in `--version`, manifests and attempt records. It is never
//! compared, and no digest or identity covers it.

/// Version, and the commit it was built from if known: `0.1.0 93d9dea17ab4+dirty`.
pub const BUILD: &str = env!("AGENTGYM_BUILD");

/// Optional features that were compiled in.
pub const FEATURES: &str = if cfg!(feature = "cuda") {
    "features: cuda"
} else {
    "features: none"
};
