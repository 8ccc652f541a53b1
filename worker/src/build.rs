//! Identifies the build for people: in `--version`, manifests and attempt records. It is never
//! compared, and no digest or identity covers it.

/// Version, and the commit it was built from if known: `0.1.0 93d9dea17ab4+dirty`.
pub const BUILD: &str = env!("AGENTGYM_BUILD");

/// Optional features that were compiled in.
pub fn features() -> String {
    let all = [
        ("candle", cfg!(feature = "candle")),
        ("candle-cuda", cfg!(feature = "candle-cuda")),
        ("cuda", cfg!(feature = "cuda")),
        ("hub", cfg!(feature = "hub")),
    ];
    let names = all.into_iter().filter(|(_, built)| *built);
    let names: Vec<&str> = names.map(|(name, _)| name).collect();
    match names.is_empty() {
        true => "features: none".to_owned(),
        false => format!("features: {}", names.join(", ")),
    }
}
