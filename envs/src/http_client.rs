//! Where HTTP clients begin.

/// A client of which everything but its TLS is still to be said.
pub fn http_client() -> reqwest::ClientBuilder {
    // An error means that the process has a provider already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
}
