-- Append-only tables refuse every change. Partitions get the row triggers of their parent, and open_partition_of gives them the last one.

CREATE TRIGGER steps_immutable BEFORE UPDATE OR DELETE ON steps FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER step_routes_immutable BEFORE UPDATE OR DELETE ON step_routes FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER step_marks_immutable BEFORE UPDATE OR DELETE ON step_marks FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER prompts_immutable BEFORE UPDATE OR DELETE ON prompts FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER messages_immutable BEFORE UPDATE OR DELETE ON messages FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER trained_steps_immutable BEFORE UPDATE OR DELETE ON trained_steps FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER verdicts_immutable BEFORE UPDATE OR DELETE ON verdicts FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER rewards_immutable BEFORE UPDATE OR DELETE ON rewards FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER transitions_immutable BEFORE UPDATE OR DELETE ON transitions FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER actions_immutable BEFORE UPDATE OR DELETE ON actions FOR EACH ROW EXECUTE FUNCTION refuse_change();

CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON steps EXECUTE FUNCTION refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON step_routes EXECUTE FUNCTION refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON step_marks EXECUTE FUNCTION refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON prompts EXECUTE FUNCTION refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON messages EXECUTE FUNCTION refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON trained_steps EXECUTE FUNCTION refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON verdicts EXECUTE FUNCTION refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON rewards EXECUTE FUNCTION refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON transitions EXECUTE FUNCTION refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON actions EXECUTE FUNCTION refuse_change();
