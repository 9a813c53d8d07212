//! addnorm-report
