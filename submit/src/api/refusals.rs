//! What an error of the readers is to somebody who asked for a page.

use crate::{Error, Exit};
use agentgym_view::{Refusal, RefusalKind};

pub(super) fn refusal(error: &Error) -> Refusal {
    use agentgym_jobs::Error as Jobs;
    use agentgym_storage::Error as Storage;
    let kind = match error {
        Error::Storage(e) | Error::Jobs(Jobs::Storage(e)) => match e {
            Storage::Removed { .. } | Storage::NotStored { .. } => RefusalKind::Expired,
            Storage::NotFound { .. } | Storage::Damaged { .. } | Storage::Malformed { .. } => {
                RefusalKind::Damaged
            }
            _ => RefusalKind::Unavailable,
        },
        Error::Jobs(Jobs::Payload { .. }) | Error::Record(_) => RefusalKind::Damaged,
        other => match other.exit() {
            Exit::Run => RefusalKind::NotFound,
            Exit::Config => RefusalKind::BadQuestion,
            _ => RefusalKind::Unavailable,
        },
    };
    Refusal::new(kind, error.to_string())
}
