//! Measures a server's speed: each client plays its own session repeatedly for a fixed time.

use super::report::Speed;
use super::subject::{Doctor, REPEATED};
use crate::client::{EnvClient, Session};
use crate::error::FaultKind;
use std::time::{Duration, Instant};

impl Doctor<'_> {
    pub(super) async fn speed(&self, clients: usize, measure_s: f64) -> Speed {
        let until = Instant::now() + Duration::from_secs_f64(measure_s.clamp(0.0, 3600.0));
        let started = Instant::now();
        let mut running = tokio::task::JoinSet::new();
        for number in 0..clients {
            let (client, item, text) = (self.client.clone(), self.item(), self.spec.probe_text());
            let item = item + number as i64 % REPEATED;
            running.spawn(async move { measure(&client, item, &text, until).await });
        }
        let (mut steps, mut opens, mut failures) = (Vec::new(), Vec::new(), 0);
        while let Some(measured) = running.join_next().await {
            match measured {
                Ok(measured) => {
                    steps.extend(measured.steps_ms);
                    opens.extend(measured.opens_ms);
                    failures += measured.failures;
                }
                Err(_) => failures += 1,
            }
        }
        let elapsed_s = started.elapsed().as_secs_f64();
        steps.sort_by(f64::total_cmp);
        opens.sort_by(f64::total_cmp);
        let at = |sorted: &[f64], share: f64| {
            let index = (sorted.len() as f64 * share) as usize;
            sorted
                .get(index.min(sorted.len().saturating_sub(1)))
                .copied()
        };
        Speed {
            clients,
            steps: steps.len(),
            steps_per_s: steps.len() as f64 / elapsed_s,
            step_ms: at(&steps, 0.5).zip(at(&steps, 0.99)),
            open_ms: at(&opens, 0.5),
            failures,
        }
    }
}

#[derive(Default)]
struct Measured {
    steps_ms: Vec<f64>,
    opens_ms: Vec<f64>,
    failures: usize,
}

async fn measure(client: &EnvClient, item: i64, text: &str, until: Instant) -> Measured {
    let mut measured = Measured::default();
    let ms = |since: Instant| since.elapsed().as_secs_f64() * 1000.0;
    let mut session: Option<Session> = None;
    // If opening takes longer than the measurement, wait for one step.
    let none_yet = |measured: &Measured| measured.steps_ms.is_empty() && measured.failures == 0;
    while Instant::now() < until || none_yet(&measured) {
        let started = Instant::now();
        let Some(open) = &mut session else {
            match client.open(item).await {
                Ok(opened) => session = Some(opened),
                Err(_) => {
                    measured.failures += 1;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            measured.opens_ms.push(ms(started));
            continue;
        };
        match open.step(text).await {
            Ok(step) => {
                measured.steps_ms.push(ms(started));
                if !step.done {
                    continue;
                }
            }
            Err(error) if error.kind() == FaultKind::Finished => {}
            Err(_) => measured.failures += 1,
        }
        // The drop closes it in the background, or keeps it for the next round.
        session = None;
    }
    measured
}
