mod model;
mod table;
