//! Every file in `configs/` can be planned as it stands.

use agentgym_jobs::config::RunConfig;
use agentgym_jobs::plan::Plan;
use agentgym_submit::plan_view::PlanView;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn configs() -> Vec<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(Path::new(ROOT).join("configs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect();
    found.sort();
    found
}

#[test]
fn every_config_is_planned() {
    let configs = configs();
    assert!(!configs.is_empty(), "configs/ holds no config");
    for path in configs {
        let name = path.display().to_string();
        let config = RunConfig::read(&path, &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(
            config.unused.is_empty(),
            "{name}: keys without a meaning: {:?}",
            config.unused
        );
        let plan = Plan::new(config, Path::new(ROOT)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let stored = Plan::from_bytes(&plan.to_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(
            stored.identity, plan.identity,
            "{name}: storing changes the identity"
        );
        let screen = PlanView::new(&plan, "store", None, &[]).render();
        let lines = screen.lines().count();
        assert!(
            (8..=24).contains(&lines),
            "{name}: {lines} lines are not one screen:\n{screen}"
        );
    }
}
