//! addnorm-data
