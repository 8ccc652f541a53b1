//! The common start of every HTTP client.

/// A client builder with only TLS set up.
pub fn http_client() -> reqwest::ClientBuilder {
    // An error means that the process already has a provider, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
}
