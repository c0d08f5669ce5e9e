mod grace;
mod lone;
mod model;
mod table;

use lone::table;
