//! The viewer: pages in a browser over a read-only data API.
//!
//! This crate owns everything that is about being a web server for one person: which questions a
//! URL can ask ([`Ask`]), who may ask them, how answers are cached and how pages are told of news.
//! It knows no store and no run. What the answers are is decided by a [`Answers`]; the program
//! implements it over the readers that its other commands use.
//!
//! Pages are plain ES modules, one style sheet and SVG, embedded in the program; there is nothing
//! to build or to fetch.

mod answers;
mod ask;
mod assets;
mod guard;
mod news;
mod refusal;
mod server;

pub use answers::Answers;
pub use ask::{Ask, EpisodeFilter, PartRef};
pub use assets::{asset, bundle_page};
pub use refusal::{API_VERSION, Refusal, RefusalKind};
pub use server::{Viewer, ViewerOptions, serve};
