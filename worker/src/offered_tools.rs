//! What a run gives a policy's chat template, and whether that has a place for the tools of the run's
//! environments: asked when the run is planned, where the folder is at hand, and again when it is
//! copied.

use crate::{Error, Result};
use agentgym_jobs::plan::Plan;
use agentgym_model::{Chat, TemplateSettings, TinyShape};

/// What the keys of the model give its template.
pub fn template_settings(plan: &Plan) -> TemplateSettings {
    let model = &plan.config.actor_rollout_ref.model;
    TemplateSettings {
        date: model.template_date.clone(),
        variables: model.template_variables.clone(),
    }
}

/// The template as it is with the tools of each environment whose actions are calls.
///
/// # Errors
/// A template that has no place for them; the message names the environment.
pub fn offering(plan: &Plan, chat: &Chat) -> Result<Vec<Chat>> {
    let path = &plan.config.actor_rollout_ref.model.path;
    let hint = match TinyShape::preset(path) {
        Ok(Some(_)) => "; the presets have one by the option template=tools",
        _ => "",
    };
    let mut all = Vec::new();
    for (name, environment) in plan.config.environments() {
        let spec = plan.config.spec(&environment.task_name);
        let spec = spec.map_err(|e| Error::stage(e.to_string()))?;
        if let Some(tools) = spec.offered() {
            let offering = chat.with_tools(&tools);
            all.push(offering.map_err(|e| {
                Error::stage(format!(
                    "environment `{name}` is played by calls of tools, and {e}{hint}"
                ))
            })?);
        }
    }
    Ok(all)
}
