-- What `doctor` asks a session that takes locks about itself. No arguments; one row, in the order
-- that `survey.rs` reads it. Spans are in milliseconds; what the system does with a connection is
-- read from the connection, and is zero for a socket file.
SELECT pg_backend_pid(),
    inet_server_addr() IS NOT NULL,
    max(s.setting::bigint) FILTER (WHERE s.name = 'idle_session_timeout'),
    max(s.setting::bigint) FILTER (WHERE s.name = 'client_connection_check_interval'),
    max(s.setting::bigint) FILTER (WHERE s.name = 'tcp_keepalives_idle') * 1000,
    max(s.setting::bigint) FILTER (WHERE s.name = 'tcp_keepalives_interval') * 1000,
    max(s.setting::bigint) FILTER (WHERE s.name = 'tcp_keepalives_count'),
    max(s.setting::bigint) FILTER (WHERE s.name = 'tcp_user_timeout')
FROM pg_settings s
WHERE s.name IN ('idle_session_timeout', 'client_connection_check_interval',
    'tcp_keepalives_idle', 'tcp_keepalives_interval', 'tcp_keepalives_count', 'tcp_user_timeout')
