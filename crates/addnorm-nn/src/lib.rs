//! addnorm-nn
